variable "name" {
  description = "Of the cluster, and the beginning of all other names."
  type        = string
  default     = "guanaco"
}

variable "region" {
  description = "GUANACO_S3_REGION of k8s/base/kustomization.yaml is the same."
  type        = string
  default     = "us-east-1"
}

variable "zones" {
  description = "Availability zones of the region; the GPU nodes are in the first that has them."
  type        = list(string)
  default     = ["us-east-1a", "us-east-1b", "us-east-1c"]
}

variable "bucket" {
  description = "The bucket of artifacts, as in GUANACO_ARTIFACTS_URL; names are unique in all of AWS, so choose your own."
  type        = string
  default     = "guanaco-artifacts"
}

variable "prefix" {
  description = "The folder of the bucket, as in GUANACO_ARTIFACTS_URL."
  type        = string
  default     = "models"
}

variable "platform_nodes" {
  description = "Nodes of the API and the workers."
  type        = object({ type = string, min = number, max = number })
  default     = { type = "m7i.xlarge", min = 3, max = 6 }
}

variable "gpu_nodes" {
  description = "Nodes of the model servers: gpus is the number in one machine, max how many machines there may be, gpu the type as Guanaco calls it."
  type        = map(object({ type = string, gpu = string, gpus = number, max = number }))
  default = {
    l40s = { type = "g6e.48xlarge", gpu = "L40S", gpus = 8, max = 1 }
    h100 = { type = "p5.48xlarge", gpu = "H100", gpus = 8, max = 1 }
  }
}

variable "operators" {
  description = "Networks from which the Kubernetes API can be reached, such as 203.0.113.0/24."
  type        = list(string)
}
