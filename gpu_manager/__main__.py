"""``python -m gpu_manager``: the program ``gpu-manager``."""

from gpu_manager.cli.main import main

main()
