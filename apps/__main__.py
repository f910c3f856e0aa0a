"""`python -m apps` is the same as `nvs`."""

import sys

from apps.cli import main

sys.exit(main())
