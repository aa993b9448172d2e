"""Measured workloads of bunqueue, beside the original where it is installed. See README.md."""
