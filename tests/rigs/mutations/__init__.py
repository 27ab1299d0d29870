"""Mutations: the engine with one rule of docs/protocol.md taken out at a time; every one must turn a run red."""
