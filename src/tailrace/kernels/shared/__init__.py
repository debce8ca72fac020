"""Code that several kernels share: bytes, hashes, records.

In a loop over bytes a function call is only fast if the compiler has the function in the same file. So ``setup.py``
replaces the line that imports a file of this folder by the text of the file, once per kernel. That text is part of
the digest of a compiled kernel. In an interpreted kernel the line is an import. A file may import other files
of this folder. A kernel must not define a name that an imported file of this folder defines.
"""
