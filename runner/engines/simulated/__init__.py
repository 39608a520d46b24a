"""A simulated SGLang: a process of ours that speaks its HTTP and its log language. Every result that comes from it is SIMULATED.

`force.py` decides what a version makes of the flags, `cost.py` what that costs, `scheduler.py` who runs when (both without a
clock, so that `truth.py` computes the true effects from the very same code), the rest is the process around them.
The code that judges (analysis, planning, reporting) never imports this package."""
