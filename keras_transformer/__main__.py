"""`python -m keras_transformer` is the console command."""

import sys

from keras_transformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
