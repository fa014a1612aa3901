"""Run time: guards, unwrap, call, rewrap. `reference` is the readable interpreter, `codegen` emits the same as source."""
