"""What several kernels are made of: bytes and hashes, one source for all of them.

A function is worth calling in a loop over bytes only when the compiler has it in the same file. So
``setup.py`` puts a file from here in the place of the line that imports it, and its text counts for
the digest that a compiled kernel carries. Interpreted, that line is an import. It stands alone, and
names of these files are used nowhere else in a kernel that imports one.
"""
