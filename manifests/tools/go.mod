// The tools that render the manifests and list what is in the image, in a module
// of their own so that what they need is no dependency of the product's.
module github.com/gpu-labeller/gpu-labeller/manifests/tools

go 1.26.0
