"""Benchmarks of Penstock against bare servers and bare runtimes, in one run on one machine."""
