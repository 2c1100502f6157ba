"""The same as `python -m torch_patterns.bench`."""

from torch_patterns.bench import main

if __name__ == "__main__":
    main()
