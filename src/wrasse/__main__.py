"""python -m wrasse is the wrasse command."""

from wrasse.app.cli import main

if __name__ == "__main__":
    main()
