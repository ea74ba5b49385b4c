"""What do metrics say of real situations?"""
