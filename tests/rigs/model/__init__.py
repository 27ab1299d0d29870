"""The public interface against a reference model that is small enough to be seen to be right."""
