"""Value types that several services share. Standard library only; imports nothing of MalleTrain."""
