"""Drives Debian's Firefox by Marionette, its own protocol: Playwright drives only a Firefox of its own, which cannot be had here.

A message is its length, a colon and JSON: ``[0, id, command, parameters]`` there, ``[1, id, error, result]`` back
(https://firefox-source-docs.mozilla.org/testing/marionette/Protocol.html).
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

ENTER = "\ue007"
PREFERENCES = {
    "marionette.port": 0,  # a free one; MarionetteActivePort in the profile has its number
    "app.normandy.enabled": False,
    "app.update.enabled": False,
    "browser.safebrowsing.malware.enabled": False,
    "browser.safebrowsing.phishing.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.page": 0,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "toolkit.telemetry.enabled": False,
    "ui.prefersReducedMotion": 1,
}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of a reference (WebDriver, section 12.3)
COMPLAINTS = """
return Services.console.getMessageArray()
  .filter((one) => one instanceof Ci.nsIScriptError && one.sourceName.startsWith(arguments[0]))
  .filter((one) => !one.errorMessage.includes("was interrupted while the page was loading"))
  .map((one) => `${one.sourceName}: ${one.errorMessage}`);
"""


SCRIPT_MS = (
    240_000  # axe takes seconds for a page, and more on a busy machine; Firefox would wait for 30 s
)


class MarionetteError(Exception):
    """Firefox refused a command."""


class Firefox:
    """One Firefox with one window."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def start(cls, program: str, profile: Path) -> Firefox:
        lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in PREFERENCES.items())
        (profile / "user.js").write_text("\n".join(lines))
        process = await asyncio.create_subprocess_exec(
            program,
            "--headless",
            "--marionette",
            "--remote-allow-system-access",
            "--no-remote",
            "--profile",
            str(profile),
            env=os.environ | {"HOME": str(profile), "MOZ_CRASHREPORTER_DISABLE": "1"},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        port_file = profile / "MarionetteActivePort"
        async with asyncio.timeout(120):
            while not (port_file.exists() and port_file.read_text().strip()):
                assert process.returncode is None, f"Firefox ended with {process.returncode}"
                await asyncio.sleep(0.05)
        streams = await asyncio.open_connection(
            "127.0.0.1", int(port_file.read_text()), limit=2**26
        )
        firefox = cls(process, *streams)
        await firefox._read()
        await firefox.call("WebDriver:NewSession", capabilities={})
        await firefox.call("WebDriver:SetTimeouts", script=SCRIPT_MS)
        return firefox

    async def close(self) -> None:
        self._writer.close()
        self._process.kill()
        await self._process.wait()

    async def open(self, url: str) -> None:
        await self.call("WebDriver:Navigate", url=url)

    async def resize(self, width: int, height: int) -> None:
        await self.call("WebDriver:SetWindowRect", width=width, height=height)

    async def run(self, script: str, *args: object) -> Any:
        """Return what the body of a function returns in the page."""
        return await self._value("WebDriver:ExecuteScript", script=script, args=list(args))

    async def run_until_done(self, script: str, *args: object) -> Any:
        """Run the body of a function whose last argument is to be called with the result."""
        return await self._value("WebDriver:ExecuteAsyncScript", script=script, args=list(args))

    async def click(self, xpath: str) -> None:
        await self.call("WebDriver:ElementClick", id=await self._find(xpath))

    async def type(self, xpath: str, text: str) -> None:
        await self.call("WebDriver:ElementSendKeys", id=await self._find(xpath), text=text)

    async def wait(self, condition: str) -> None:
        """Wait until an expression is true in the page."""
        async with asyncio.timeout(30):
            while not await self.run(f"return Boolean({condition});"):
                await asyncio.sleep(0.05)

    async def complaints(self, url: str) -> list[str]:
        """Return the errors and warnings of a site's scripts, styles and policies since the last call.

        A stream that ends because its page is left is no error.
        """
        await self.call("Marionette:SetContext", value="chrome")
        found = await self.run(COMPLAINTS, url)
        await self.run("Services.console.reset();")
        await self.call("Marionette:SetContext", value="content")
        return list(found)

    async def call(self, command: str, **parameters: object) -> Any:
        self._number += 1
        message = json.dumps([0, self._number, command, parameters]).encode()
        self._writer.write(b"%d:%s" % (len(message), message))
        async with asyncio.timeout(120):
            _, number, error, result = await self._read()
        assert number == self._number
        if error is not None:
            raise MarionetteError(f"{command}: {error['error']}: {error['message']}")
        return result

    async def _value(self, command: str, **parameters: object) -> Any:
        return (await self.call(command, **parameters))["value"]

    async def _find(self, xpath: str) -> str:
        found = await self._value("WebDriver:FindElement", using="xpath", value=xpath)
        return str(found[ELEMENT])

    async def _read(self) -> Any:
        size = int((await self._reader.readuntil(b":"))[:-1])
        return json.loads(await self._reader.readexactly(size))
