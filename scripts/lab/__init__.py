"""What measures, and fills the documentation from results. A command is a module with main().

measure.py           gpu_check.sh and `maintain measure`: the sections; session.py runs them
merge.py             results of several calls as one; docs/results
peers.py             scripts/peers.py, with comparison.py, torch_attention.py and peers_table.py
figure2.py           scripts/figure2.py
decode.py ring.py    `maintain decode` and `ring`: jobs, which jobs.py runs
measured.py          the tables and figures of what these two measured
tables.py            `maintain tables`: fills the pages from all of this
claims.py            scripts/claims, with claims_file.py
all others           tools of ./scripts/maintain
"""
