"""Empty. In the original, importing this module configured logging; in Penstock a service does.

The original's log files are written if the configuration says so.
"""
