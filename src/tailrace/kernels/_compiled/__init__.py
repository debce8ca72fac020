"""Compiled twins of the kernels, made by the build; empty where there is no C compiler."""
