"""The engine contract, artifacts, and the scheduler that shares one engine among requests.

build     backend: command, traits -> plan -> build -> artifact: fingerprint -> cost_curve, first_rows; removal
load      create: memory -> contract (the engine: torch, or several ranks: parallel, rank)
a step    submission -> admission -> waiting_queue -> scheduler: running, step
others    compilation, machine_load, pass_watch
"""
