"""Measurement: workloads, bench, replay, verify, reports."""
