"""The functions that users call: enable, compile, compile_step, trace, plan, bind."""
