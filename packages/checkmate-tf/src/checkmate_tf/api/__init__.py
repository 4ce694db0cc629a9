"""The functions that users call: enable, compile, function, trace, plan, bind."""
