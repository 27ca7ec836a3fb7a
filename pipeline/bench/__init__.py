"""Measurement: workloads, bench, verify, reports."""
