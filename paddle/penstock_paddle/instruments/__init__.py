"""The original's tracer, profile lines and log files, as instruments of Penstock.

``penstock.service.instruments`` makes them when keys of the configuration request them.
"""
