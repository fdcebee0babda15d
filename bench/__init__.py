"""The bars, measured: ``python -m bench [--only GROUP] [--full]`` prints one table and build/bench.json."""
