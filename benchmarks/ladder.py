"""`python -m torch_patterns.bench` by its place: see there."""

from torch_patterns.bench import main

if __name__ == "__main__":
    main()
