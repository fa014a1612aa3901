"""The only door to torch's private API. Everything else in this package uses public torch, or a
name from one of the modules here, which are by subject: `modes`, `fakes`, `symbols`, `autograd`,
...

`tests/test_torch_door.py` lists these symbols and checks them on the installed torch. Supported:
torch 2.11 to 2.15. Anything that pulls in Dynamo or inductor is imported inside a function, so that
``import subclass_trace`` stays light.
"""
