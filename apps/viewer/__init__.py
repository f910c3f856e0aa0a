"""The browser viewer: a page on Gradio, frames over one WebSocket per tab, and one render thread behind it."""
