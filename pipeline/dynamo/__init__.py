"""NVIDIA Dynamo in front of Triton: its worker, and the processes that `lookahead serve` starts."""
