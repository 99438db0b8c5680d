"""python -m wrasse is the wrasse command."""

from wrasse.cli.main import main

if __name__ == "__main__":
    main()
