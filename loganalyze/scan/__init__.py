"""Scan archives of logs into one page and one dataset: see archive.py."""
