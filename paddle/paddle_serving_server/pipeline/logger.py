"""Importing it configured logging in the original. In Penstock a service does that when it starts.

The log files of the original are written where the configuration asks for them.
"""
