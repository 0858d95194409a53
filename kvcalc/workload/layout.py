"""What one sequence holds of a pool as it grows: by its need, or by the blocks of an engine."""

from kvcalc.sizing.blocks import Group, Layout, Pinned, Window, layout_of

__all__ = ["Group", "Layout", "Pinned", "Window", "layout_of"]
