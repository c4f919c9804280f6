"""python -m tensorcx: the command line."""

from tensorcx.cli import main

if __name__ == "__main__":
    main()
