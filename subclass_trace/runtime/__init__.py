"""Run time: guards, unwrap, call, rewrap, as generated source. `finish` does what is rare."""
