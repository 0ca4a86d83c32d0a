"""`python -m segcal`: the command line, for where scripts are not on the path."""

from segcal.cli import main

if __name__ == "__main__":
    main()
