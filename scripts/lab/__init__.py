"""For maintainers: measures on a GPU, and fills the documentation from results.

measure.py           gpu_check.sh and `maintain measure`; session.py: its folder and its programs
peers.py             scripts/peers.py, with comparison.py, masks.py and torch_attention.py;
                     decode.py and ring.py of steps 13 and 14. Each is how to measure and show it;
                     jobs.py: their run, measured.py: their rows
model.py             updates of a GPT with each step, for `model measure`, and its training;
                     model_tables.py: their tables and picture
publish.py           from what was measured to docs/results
tables.py            from docs/results into pages, with estimates.py and where.py
counters_vs_sim.py   whether a GPU's counters are the simulator's counts
equal_code.py        which steps are the same to a GPU as at an older commit
instructions.py      counts each kernel's instructions, for the clock
"""
