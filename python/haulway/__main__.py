"""python -m haulway: the command."""

from haulway._command import main

if __name__ == "__main__":
    main()
