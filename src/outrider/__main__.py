"""`python -m outrider`: the same as `outrider`."""

from outrider.cli.main import main

if __name__ == "__main__":
    main()
