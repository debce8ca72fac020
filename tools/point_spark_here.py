"""Let PySpark started from this checkout's environment use it and start its workers with it.

PySpark runs workers with ``python3`` of the PATH unless PYSPARK_PYTHON says otherwise, and that one
has no Tailrace. Only the development environment gets this; users set the variable themselves.
"""

import sysconfig
from pathlib import Path

LINE = 'import os, sys; os.environ.setdefault("PYSPARK_PYTHON", sys.executable)\n'
Path(sysconfig.get_path("purelib"), "tailrace-development.pth").write_text(LINE)
