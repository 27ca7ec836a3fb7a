"""The engine contract, artifacts, and the scheduler that shares one engine among requests.

build     backend: start_command, traits -> plan -> build -> artifact: fingerprint -> cost_curve, first_rows; removal
load      scheduler_factory: memory -> contract (the engine: torch, or several ranks: parallel, rank)
a step    submission -> admission -> waiting_queue -> scheduler: running_request, step
others    compilation, machine_load, pass_watch
"""
