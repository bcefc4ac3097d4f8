"""For maintainers: measures on a GPU, and fills the documentation from results.

measure.py           gpu_check.sh and `maintain measure`; session.py: its folder and its programs
peers.py             scripts/peers.py, with comparison.py, masks.py and torch_attention.py;
                     decode.py, ring.py, masked.py and latent.py for steps 13, 14, 15 and 17,
                     models.py for 10, 11 and 13, beside those of rivals.py. Each measures and
                     shows; jobs.py runs them, measured.py has their rows
model.py             updates of a GPT with each step, for `model measure`, and its training;
                     model_tables.py: their tables and picture
publish.py           from measurements to docs/results
tables.py            from docs/results into pages, with estimates.py
counters_vs_sim.py   are a GPU's counters equal to the simulator's counts?
equal_code.py        steps with the same machine code and launches as at an older commit
instructions.py      counts each kernel's instructions, for the clock
"""
