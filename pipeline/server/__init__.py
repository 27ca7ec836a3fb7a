"""Find and run tritonserver, talk to it."""
