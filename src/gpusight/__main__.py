"""`python -m gpusight`."""

from gpusight.cli.main import run

if __name__ == "__main__":
    run()
