"""The rules: one file per family. Importing a file registers its rules; `rules.load` imports them
all."""
