"""Reports: what was unwrapped, guarded, saved, and why. Reads plans; nothing below imports it at
module level."""
