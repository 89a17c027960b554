"""The servers under test, each one small script that a benchmark starts on one core."""
