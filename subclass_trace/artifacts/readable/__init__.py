"""Specializations as one readable Python file that needs torch alone."""

from .file import save_source

__all__ = ["save_source"]
