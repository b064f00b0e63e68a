"""Import paths that programs know from elsewhere: ``zse.core.zstream``, ``zse.core.zsparse``."""
