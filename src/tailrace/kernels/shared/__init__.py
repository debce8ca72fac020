"""What several kernels are made of: bytes, hashes, records; one source for all of them.

A function is worth calling in a loop over bytes only when the compiler has it in the same file. So
``setup.py`` puts a file from here, once, in the place of the line that imports it, and its text counts
for the digest that a compiled kernel carries. Interpreted, that line is an import. A file may import
others of this folder. Names of these files are used for nothing else in a kernel that imports one.
"""
